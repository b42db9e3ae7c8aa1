//! The `mainline` crate: one datagram of plain bencode each way, twenty contacts an answer.

#![allow(deprecated)] // Its plain calls, as elsewhere here.

use std::error::Error;

use mainline::Testnet;

use super::OTHERS;

/// The network, and where to ask: not its first node, which takes every asker for a contact.
pub(super) fn start() -> Result<(Testnet, String), Box<dyn Error>> {
    let testnet = Testnet::builder(OTHERS + 1).seeded(false).build()?;
    if !testnet.nodes.iter().all(|node| node.bootstrapped()) {
        return Err("mainline's nodes did not find each other".into());
    }
    let port = testnet.nodes[OTHERS].info().local_addr().port();
    Ok((testnet, format!("127.0.0.1:{port}")))
}

/// A question for a target that differs each time.
pub(super) fn find_node(serial: &mut u32, datagram: &mut Vec<u8>) {
    *serial += 1;
    // Spread over the keyspace, so that answers differ.
    let spread = serial.wrapping_mul(0x9e37_79b1).to_be_bytes();
    datagram.extend_from_slice(b"d1:ad2:id20:tessera-rivals-asker6:target20:");
    (0..5).for_each(|_| datagram.extend_from_slice(&spread));
    datagram.extend_from_slice(b"e1:q9:find_node1:t4:");
    datagram.extend_from_slice(&serial.to_be_bytes());
    datagram.extend_from_slice(b"1:y1:qe");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_with_contacts() {
        let (_testnet, target) = start().expect("it starts");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("set");
        let (mut datagram, mut answer) = (Vec::new(), [0; 2048]);
        find_node(&mut 0, &mut datagram);
        socket.send_to(&datagram, target).expect("sent");
        let len = socket.recv(&mut answer).expect("answered");
        assert!(
            answer[..len].windows(10).any(|part| part == b"5:nodes520"),
            "{:?}",
            answer[..len].escape_ascii().to_string()
        );
    }
}
