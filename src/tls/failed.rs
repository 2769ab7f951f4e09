//! Why two sides do not come to speak TLS, and what to do about each reason; and certificates that nobody will trust.

use crate::units::time;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, Error, RootCertStore};
use std::io;
use std::path::Path;
use std::time::Duration;

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

/// Warns of certificates that clients refuse for their time. A server with such a one starts all the same: its clock may
/// be wrong.
pub(super) fn warn_of_validity(path: &Path, shown: &[CertificateDer<'_>]) {
    let path = path.display();
    for (number, certificate) in (1..).zip(shown) {
        match validity(certificate, UnixTime::now()) {
            Validity::Valid => {}
            Validity::Expired { since } => {
                tracing::warn!(%path, number, "the certificate expired {} ago: clients refuse it; renew it, and send the server SIGHUP", time(since));
            }
            Validity::NotYet { within } => {
                tracing::warn!(%path, number, "the certificate is not valid before {} from now: clients refuse it until then; see that the clock of this host is right", time(within));
            }
        }
    }
}

/// What a certificate is at an instant.
#[derive(Debug, PartialEq, Eq)]
enum Validity {
    Valid,
    Expired { since: Duration },
    NotYet { within: Duration },
}

/// By the check that a client makes first, before it looks who has signed: so nobody needs to have.
fn validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Validity {
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    let checked = ParsedCertificate::try_from(certificate).and_then(|parsed| {
        verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], now, algorithms)
    });
    let between = |later: UnixTime, earlier: UnixTime| {
        Duration::from_secs(later.as_secs().saturating_sub(earlier.as_secs()))
    };
    match checked {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after })) => {
            Validity::Expired { since: between(time, not_after) }
        }
        Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before })) => {
            Validity::NotYet { within: between(not_before, time) }
        }
        _ => Validity::Valid,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A certificate is valid from its first second on, and until its last one, whoever has signed it.
    #[test]
    fn certificates_have_their_time() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 2);
        let (begin, day) = (1_577_836_800, 86_400);
        for is_ca in [rcgen::IsCa::NoCa, rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained)] {
            params.is_ca = is_ca;
            let certificate = params.self_signed(&key).unwrap();
            let validity = |seconds| validity(certificate.der(), at(seconds));
            assert_eq!((validity(begin), validity(begin + day)), (Validity::Valid, Validity::Valid));
            assert_eq!(validity(begin - 9), Validity::NotYet { within: Duration::from_secs(9) });
            assert_eq!(validity(begin + day + 9), Validity::Expired { since: Duration::from_secs(9) });
        }
    }

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
