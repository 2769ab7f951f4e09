//! Users by name or number.

use nix::unistd::User;
use std::str::FromStr;

/// A user of this host, given by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserId(pub u32);

impl FromStr for UserId {
    type Err = String;

    fn from_str(given: &str) -> Result<UserId, String> {
        match given.parse() {
            // To the kernel it means no user.
            Ok(u32::MAX) => return Err("this number is no user's; name a user, or a lower number".into()),
            Ok(uid) => return Ok(UserId(uid)),
            Err(_) => {}
        }
        match User::from_name(given) {
            Ok(Some(user)) => Ok(UserId(user.uid.as_raw())),
            Ok(None) => Err("there is no such user; `getent passwd` lists them".into()),
            Err(e) => Err(format!("looking the user up: {e}")),
        }
    }
}

/// The user's name, or the number if there is none.
pub fn name(uid: u32) -> String {
    match User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}
