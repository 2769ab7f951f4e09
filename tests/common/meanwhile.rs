//! What is done while a change waits between its decision and its effect.

use oneread::LeftCause;
use oneread::internals::index::{Awaited, DecidedChange, Decision, KeyChange, KeyPlace, Seams};

/// Does something while the next change waits.
#[derive(Default)]
pub struct Meanwhile(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Meanwhile {
    pub fn set(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(act));
    }
}

struct Act(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Act")
    }
}

impl Awaited for Act {
    fn then(self: Box<Self>, change: DecidedChange) {
        (self.0)();
        change.make();
    }
}

impl Seams for Meanwhile {
    fn decided(&self, _change: &KeyChange<'_>, _: LeftCause) -> Decision {
        match self.0.lock().unwrap().take() {
            Some(act) => Decision::After(Box::new(Act(act))),
            None => Decision::Now,
        }
    }

    fn done(&self, _change: &KeyChange<'_>, _at: KeyPlace) {}
}
