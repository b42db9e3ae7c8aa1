//! Certificates for clusters that speak TLS, made by `openssl` and removed when dropped.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::config::{Secret, Tls, TlsIdentity};

/// An authority, what it signed for a server and a client on this machine, and another authority that signed nothing.
#[derive(Debug)]
pub struct Certificates {
    folder: PathBuf,
}

const SCRIPT: &str = r"
    set -e
    openssl ecparam -name prime256v1 -genkey -noout -out ca.key
    openssl req -x509 -new -key ca.key -subj /CN=authority -days 2 -out ca.pem
    openssl ecparam -name prime256v1 -genkey -noout -out other.key
    openssl req -x509 -new -key other.key -subj /CN=other -days 2 -out other.pem
    printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' > ext
    for name in server client; do
      openssl ecparam -name prime256v1 -genkey -noout -out $name.sec1
      openssl pkcs8 -topk8 -nocrypt -in $name.sec1 -out $name.key
      openssl req -new -key $name.key -subj /CN=$name -out $name.csr
      openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out $name.pem
    done
";

impl Certificates {
    /// Makes them.
    ///
    /// # Panics
    /// If there is no `openssl`.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tessera-tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder for certificates");
        let made = Command::new("sh").args(["-c", SCRIPT]).current_dir(&folder).output().expect("a shell is installed");
        assert!(made.status.success(), "openssl is needed: {}", String::from_utf8_lossy(&made.stderr));
        Self { folder }
    }

    /// What makes a server speak TLS with them, and demand a certificate of its clients.
    #[must_use]
    pub fn server_flags(&self) -> Vec<String> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        vec![
            format!("--cert-file={}", path("server.pem")),
            format!("--key-file={}", path("server.key")),
            "--client-cert-auth=true".to_owned(),
            format!("--trusted-ca-file={}", path("ca.pem")),
        ]
    }

    /// What a client needs.
    ///
    /// # Panics
    /// If the files have gone away.
    #[must_use]
    pub fn client(&self) -> Tls {
        let key = String::from_utf8(self.read("client.key")).expect("PEM");
        let identity = Some(TlsIdentity { certificate_pem: self.read("client.pem"), key_pem: Secret::new(key) });
        Tls { ca_pem: self.read("ca.pem"), identity, server_name: None }
    }

    /// An authority that signed nothing.
    ///
    /// # Panics
    /// If the file has gone away.
    #[must_use]
    pub fn stranger(&self) -> Vec<u8> {
        self.read("other.pem")
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.join(name)).expect("openssl wrote it")
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        // What cannot be removed lies in the temporary folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
