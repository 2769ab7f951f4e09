//! Why two sides do not come to speak TLS, and what to do about each reason.

use rustls::{AlertDescription, CertificateError, Error};
use std::io;

/// The peer has hung up before both sides knew whom they speak to.
#[derive(Debug, thiserror::Error)]
#[error(
    "it hung up in the handshake; it may speak no TLS, not trust this side, or have no file descriptor left"
)]
pub(super) struct HandshakeEnded;

/// Whether TLS says that this peer is none, or none that is trusted.
pub(crate) fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<Error>() || error.is::<HandshakeEnded>())
}

/// What a client is to do about it.
pub(crate) fn mend(error: &io::Error) -> String {
    match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(why)) => of_certificate(why),
        Some(Error::AlertReceived(alert)) => of_alert(*alert).into(),
        Some(Error::PeerIncompatible(_)) => "both sides need TLS 1.3".into(),
        Some(_) | None => "see that it speaks TLS, and trusts this client".into(),
    }
}

/// The client does not believe the server's certificate.
fn of_certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired: have it renewed there, and see that the clock of this host is right".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: see that the clocks of both hosts are right".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for other names: connect by one of these, or say which one it has (`ClientTls::server_name`)".into()
        }
        CertificateError::UnknownIssuer => {
            "its certificate comes from no authority that this client trusts: give the client its authority (`ClientOptions::tls`)".into()
        }
        why => format!("its certificate cannot be trusted ({why}): have it show another one"),
    }
}

/// The server does not let this client in.
fn of_alert(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateRequired => {
            "it asks for a certificate: give the client one, with its key (`ClientTls::new`)"
        }
        AlertDescription::CertificateExpired => "this client's certificate has expired: renew it",
        AlertDescription::UnknownCA => {
            "it does not trust this client's certificate: show one of an authority that it trusts (`ClientTls::new`)"
        }
        AlertDescription::BadCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError => {
            "it refuses this client's certificate: show another one (`ClientTls::new`)"
        }
        AlertDescription::ProtocolVersion => "both sides need TLS 1.3",
        _ => "it broke the handshake off; its log may say why",
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each reason has words of its own.
    #[test]
    fn each_reason_has_its_mend() {
        let of = |error: Error| mend(&io::Error::new(io::ErrorKind::InvalidData, error));
        let errors = [
            Error::InvalidCertificate(CertificateError::Expired),
            Error::InvalidCertificate(CertificateError::NotValidYet),
            Error::InvalidCertificate(CertificateError::NotValidForName),
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Error::InvalidCertificate(CertificateError::BadSignature),
            Error::AlertReceived(AlertDescription::CertificateRequired),
            Error::AlertReceived(AlertDescription::CertificateExpired),
            Error::AlertReceived(AlertDescription::UnknownCA),
            Error::AlertReceived(AlertDescription::BadCertificate),
            Error::AlertReceived(AlertDescription::ProtocolVersion),
            Error::AlertReceived(AlertDescription::InternalError),
        ];
        let count = errors.len();
        let said: std::collections::BTreeSet<_> = errors.map(of).into_iter().collect();
        assert_eq!(said.len(), count, "{said:?}");
        let authority = said.iter().filter(|said| said.contains("give the client its authority"));
        assert_eq!(authority.count(), 1, "{said:?}");
    }
}
