//! The time of a server's certificate: clients refuse it before and after, and whoever runs the server is to know before
//! they do.

use crate::base::units::time;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// So long before its end a certificate is to be renewed.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// The time of the certificates that a server shows, and what was said of it.
#[derive(Debug)]
pub(super) struct Lifetime {
    path: PathBuf,
    /// When the first of them ends. `None`: never, as far as is known.
    ends: Option<UnixTime>,
    told: Option<Warned>,
}

/// What was warned of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Warned {
    /// It ends within [`SOON`].
    EndsSoon,
    Ended,
}

impl Lifetime {
    /// Looks at the certificates in this file. Warns of those that clients refuse now. A server with such a one starts all
    /// the same: its clock may be wrong.
    pub fn of(path: &Path, shown: &[CertificateDer<'_>], now: UnixTime) -> Lifetime {
        for (number, certificate) in (1..).zip(shown) {
            if let Validity::NotYet { within } = validity(certificate, now) {
                let path = path.display();
                tracing::warn!(%path, number, "the certificate is not valid before {} from now: clients refuse it until then; see that the clock of this host is right", time(within));
            }
        }
        let mut lifetime =
            Lifetime { path: path.into(), ends: shown.iter().filter_map(end_of).min(), told: None };
        lifetime.look(now);
        lifetime
    }

    /// Says what has come of it: once that it ends soon, and once that it has ended. Returns what was said.
    pub fn look(&mut self, now: UnixTime) -> Option<Warned> {
        let left = self.left_seconds(now)?;
        let stage = match left {
            left if left < 0 => Warned::Ended,
            left if left as u64 <= SOON.as_secs() => Warned::EndsSoon,
            _ => return None,
        };
        if self.told >= Some(stage) {
            return None;
        }
        self.told = Some(stage);
        let (path, away) = (self.path.display(), time(Duration::from_secs(left.unsigned_abs())));
        match stage {
            Warned::EndsSoon => tracing::warn!(
                %path,
                "the certificate ends in {away}, and clients refuse it then; renew it, and send the server SIGHUP"
            ),
            Warned::Ended => tracing::warn!(
                %path,
                "the certificate expired {away} ago: clients refuse it; renew it, and send the server SIGHUP"
            ),
        }
        Some(stage)
    }

    /// Seconds until it ends; below 0, since then.
    pub fn left_seconds(&self, now: UnixTime) -> Option<i64> {
        let ends = self.ends?.as_secs();
        Some(i64::try_from(ends).unwrap_or(i64::MAX).saturating_sub(now.as_secs() as i64))
    }
}

/// What a certificate is at an instant.
#[derive(Debug, PartialEq, Eq)]
enum Validity {
    Valid,
    Ended { at: UnixTime },
    NotYet { within: Duration },
}

/// By the check that a client makes first, before it looks who has signed: so nobody needs to have.
fn validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Validity {
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    let checked = ParsedCertificate::try_from(certificate).and_then(|parsed| {
        verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], now, algorithms)
    });
    match checked {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Validity::Ended { at: not_after }
        }
        Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before })) => {
            Validity::NotYet {
                within: Duration::from_secs(not_before.as_secs().saturating_sub(time.as_secs())),
            }
        }
        _ => Validity::Valid,
    }
}

/// When a certificate ends: what the check says when all have ended.
fn end_of(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    /// In the year 9999, the last one that a certificate can name.
    const LAST: u64 = 253_402_300_799;
    match validity(certificate, UnixTime::since_unix_epoch(Duration::from_secs(LAST))) {
        Validity::Ended { at } => Some(at),
        Validity::Valid | Validity::NotYet { .. } => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BEGIN: u64 = 1_577_836_800;
    const DAY: u64 = 86_400;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    /// A certificate of this first day of 2020, and so many more, signed by itself.
    fn certificate(days: u64, is_ca: rcgen::IsCa) -> rcgen::Certificate {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1) + Duration::from_secs(days * DAY);
        params.is_ca = is_ca;
        params.self_signed(&key).unwrap()
    }

    /// A certificate is valid from its first second on, and until its last one, whoever has signed it.
    #[test]
    fn certificates_have_their_time() {
        for is_ca in [rcgen::IsCa::NoCa, rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained)] {
            let certificate = certificate(1, is_ca);
            let validity = |seconds| validity(certificate.der(), at(seconds));
            assert_eq!((validity(BEGIN), validity(BEGIN + DAY)), (Validity::Valid, Validity::Valid));
            assert_eq!(validity(BEGIN - 9), Validity::NotYet { within: Duration::from_secs(9) });
            assert_eq!(validity(BEGIN + DAY + 9), Validity::Ended { at: at(BEGIN + DAY) });
            assert_eq!(end_of(certificate.der()), Some(at(BEGIN + DAY)));
        }
    }

    /// A week before the first certificate of a file ends, that is said once, and once when it has ended.
    #[test]
    fn the_end_of_a_certificate_is_told() {
        let [short, long] = [30, 90].map(|days| certificate(days, rcgen::IsCa::NoCa));
        let shown = [long.der().clone(), short.der().clone()];
        let of = |now| Lifetime::of(Path::new("/cert"), &shown, at(now));
        let mut lifetime = of(BEGIN);
        assert_eq!(lifetime.left_seconds(at(BEGIN)), Some(30 * DAY as i64));
        let week = BEGIN + 23 * DAY;
        for (now, said) in [
            (BEGIN + DAY, None),
            (week - 1, None),
            (week, Some(Warned::EndsSoon)),
            (week + DAY, None),
            (BEGIN + 30 * DAY, None),
            (BEGIN + 30 * DAY + 1, Some(Warned::Ended)),
            (BEGIN + 40 * DAY, None),
        ] {
            assert_eq!(lifetime.look(at(now)), said, "{now}");
        }
        assert_eq!(lifetime.left_seconds(at(BEGIN + 31 * DAY)), Some(-(DAY as i64)));
        // What is read late says only what counts by then.
        assert_eq!(of(week).told, Some(Warned::EndsSoon));
        assert_eq!(of(BEGIN + 31 * DAY).told, Some(Warned::Ended));
        assert_eq!(Lifetime::of(Path::new("/cert"), &[], at(BEGIN)).left_seconds(at(BEGIN)), None);
    }
}
