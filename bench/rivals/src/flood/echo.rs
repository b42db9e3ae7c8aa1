//! A thread that returns every datagram as it came: one call to receive, one to send.

use std::net::UdpSocket;

/// Starts it and says where.
pub(super) fn start() -> std::io::Result<String> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let addr = socket.local_addr()?;
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        // Ends with the process; a datagram that could not be returned is the sender's to miss.
        loop {
            if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        }
    });
    Ok(addr.to_string())
}
