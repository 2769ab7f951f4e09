//! The members of an etcd. Each has a connection of its own. A call goes to the next member if one is down, is silent,
//! or has no leader.
//!
//! A member that hangs, or an address that swallows packets, refuses nothing. So each attempt has a time limit. After
//! that, a read is repeated at the next member. A transaction may have been made: it waits on, and only later calls go
//! to another member.

use super::error::EtcdError;
use etcd_client::{Client, ConnectOptions, Error};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The pause between two rounds over all members.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a call may be repeated at another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// The call changes nothing: it may always be repeated.
    Always,
    /// The call may change something: it may be repeated if it was certainly not made.
    IfNotMade,
}

/// One member.
struct Member {
    endpoint: String,
    client: OnceCell<Client>,
}

/// All members of an etcd that are named.
pub struct Members {
    members: Vec<Member>,
    how: ConnectOptions,
    /// The member that is asked next.
    current: AtomicUsize,
    /// Longest time for a call, and for each attempt.
    within: Duration,
    attempt: Duration,
}

/// What is known of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// There was no connection to send it over.
    Unsent,
    /// No answer came in time.
    Late,
    /// It may have been made.
    Unknown,
    /// The member has no leader, or a new one: it was not made.
    NoLeader,
    /// It was answered: another member would answer the same.
    Answered,
}

impl Members {
    /// The members, none of which is asked yet.
    pub fn new(endpoints: Vec<String>, how: ConnectOptions, within: Duration) -> Members {
        let attempt = within / endpoints.len().max(1) as u32;
        let how = how.with_connect_timeout(attempt);
        let member = |endpoint| Member { endpoint, client: OnceCell::new() };
        let members = endpoints.into_iter().map(member).collect();
        Members { members, how, current: AtomicUsize::new(0), within, attempt }
    }

    /// The names of all members, for people.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.members.iter().map(|member| &member.endpoint[..]).collect();
        names.join(", ")
    }

    /// Longest time for one attempt.
    pub fn attempt(&self) -> Duration {
        self.attempt
    }

    /// The endpoint of the member that is asked next.
    pub fn endpoint(&self) -> &str {
        &self.members[self.at()].endpoint
    }

    fn at(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.members.len()
    }

    /// Asks the next member from now on, unless another call has moved on already.
    pub fn leave(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Makes a call, at the next member if this one does not answer. Also returns the member that answered.
    pub async fn ask<R, F>(
        &self,
        again: Again,
        mut call: impl FnMut(Client) -> F,
    ) -> Result<(usize, R), EtcdError>
    where
        F: Future<Output = Result<R, Error>>,
    {
        let until = Instant::now() + self.within;
        let (mut tries, mut told) = (0, None::<(Fate, EtcdError)>);
        loop {
            let at = self.at();
            let (fate, error) = match self.attempt_at(at, again, until, &mut call).await {
                Ok(answer) => return Ok((at, answer)),
                Err(Some(error)) => (fate(&error), failed(&self.names(), &error)),
                Err(None) => (Fate::Late, EtcdError::Late { endpoints: self.names(), waited: self.within }),
            };
            tries += 1;
            self.leave(at);
            let is_alone = self.members.len() == 1;
            let goes_on = match (fate, again) {
                (Fate::NoLeader, _) => true,
                (Fate::Unsent, _) | (Fate::Late | Fate::Unknown, Again::Always) => !is_alone,
                (Fate::Late | Fate::Unknown, Again::IfNotMade) | (Fate::Answered, _) => false,
            };
            // If members fail in several ways, the error is that of the one that got farthest.
            if told.as_ref().is_none_or(|(before, _)| *before <= fate) {
                told = Some((fate, error));
            }
            let is_round = tries % self.members.len() == 0;
            if goes_on && is_round {
                sleep(PAUSE).await;
            }
            if let Some((_, error)) = told.take_if(|_| !goes_on || Instant::now() >= until) {
                return Err(error);
            }
        }
    }

    /// `None`: no answer came in time.
    async fn attempt_at<R, F>(
        &self,
        at: usize,
        again: Again,
        until: Instant,
        call: &mut impl FnMut(Client) -> F,
    ) -> Result<R, Option<Error>>
    where
        F: Future<Output = Result<R, Error>>,
    {
        let Member { endpoint, client } = &self.members[at];
        let connect = client.get_or_try_init(|| Client::connect([endpoint], Some(self.how.clone())));
        let soon = (Instant::now() + self.attempt).min(until);
        let client = timeout_at(soon, connect).await.map_err(|_| None)??;
        let mut answer = pin!(call(client.clone()));
        let answered = match (timeout_at(soon, &mut answer).await, again) {
            (Err(_), Again::IfNotMade) => {
                self.leave(at);
                timeout_at(until, answer).await
            }
            (answered, _) => answered,
        };
        Ok(answered.map_err(|_| None)??)
    }

    /// Waits for a call at the member that was asked, within the longest time.
    pub async fn in_time<R>(&self, call: impl Future<Output = Result<R, Error>>) -> Result<R, EtcdError> {
        let endpoints = self.names();
        match timeout(self.within, call).await {
            Ok(answered) => answered.map_err(|error| failed(&endpoints, &error)),
            Err(_) => Err(EtcdError::Late { endpoints, waited: self.within }),
        }
    }
}

/// What is known of a call with this error.
fn fate(error: &Error) -> Fate {
    let told = told(error);
    let says = |words: &[&str]| words.iter().any(|words| told.contains(words));
    match error {
        _ if says(&["tcp connect error", "dns error"]) => Fate::Unsent,
        _ if says(&["no leader", "leader changed", "not leader"]) => Fate::NoLeader,
        // Codes of gRPC: cancelled, unknown, deadline exceeded, unavailable. Others are answers.
        Error::GRpcStatus(status) if ![1, 2, 4, 14].contains(&(status.code() as i32)) => Fate::Answered,
        Error::GRpcStatus(_) | Error::TransportError(_) | Error::IoError(_) => Fate::Unknown,
        _ => Fate::Answered,
    }
}

/// The error of a failed call.
fn failed(endpoints: &str, error: &Error) -> EtcdError {
    let (endpoints, why) = (endpoints.to_owned(), told(error));
    let says = |words: &[&str]| words.iter().any(|words| why.contains(words));
    match (error, fate(error)) {
        (_, Fate::NoLeader) => EtcdError::NoLeader { endpoints, why },
        (Error::GRpcStatus(_), _) if says(&["database space exceeded"]) => EtcdError::NoSpace { endpoints },
        // etcd has several codes for this, and uses them for other errors, too.
        (Error::GRpcStatus(_), _) if says(&["auth", "permission denied", "user name"]) => {
            EtcdError::Denied { endpoints, why }
        }
        _ => EtcdError::Call { endpoints, why },
    }
}

/// The client's error in plain words, with its cause.
pub fn told(error: &Error) -> String {
    use std::error::Error as StdError;
    let (mut told, mut source): (String, Option<&dyn StdError>) = match error {
        Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        Error::TransportError(error) => (error.to_string(), error.source()),
        error => (error.to_string(), error.source()),
    };
    while let Some(error) = source {
        let next = error.to_string();
        if !told.contains(&next) {
            told = if told.is_empty() { next } else { format!("{told}: {next}") };
        }
        source = error.source();
    }
    told
}
