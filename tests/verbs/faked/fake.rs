//! The fake, and how its stories are told.

use std::ffi::{CString, c_char, c_int, c_long};

/// The fake, loaded.
pub struct Fake(libloading::Library);

impl Fake {
    pub fn load(path: &str) -> Fake {
        // SAFETY: its initialisers do nothing.
        Fake(unsafe { libloading::Library::new(path) }.unwrap())
    }

    pub fn set(&self, name: &str, value: i64) {
        let name = CString::new(name).unwrap();
        // SAFETY: the signature in fake_ibverbs.c.
        let result = unsafe {
            let set = self.0.get::<unsafe extern "C" fn(*const c_char, c_long) -> c_int>(b"fake_set\0");
            set.unwrap()(name.as_ptr(), value)
        };
        assert_eq!(result, 0, "the fake has no setting {name:?}");
    }

    pub fn count(&self, name: &str) -> i64 {
        let name = CString::new(name).unwrap();
        // SAFETY: the signature in fake_ibverbs.c.
        let count = unsafe {
            let count = self.0.get::<unsafe extern "C" fn(*const c_char) -> c_long>(b"fake_count\0");
            count.unwrap()(name.as_ptr())
        };
        assert!(count >= 0, "the fake counts {count} of {name:?}");
        count
    }

    /// Checks that nothing overflowed and nothing was misused.
    pub fn check(&self) {
        for name in ["misuse", "queue_full", "cq_overflows", "rnr_waits", "lost_receives"] {
            assert_eq!(self.count(name), 0, "{name}");
        }
    }

    /// Checks that every object is closed.
    pub fn check_closed(&self) {
        for kind in ["lists", "contexts", "pds", "mrs", "channels", "cqs", "srqs", "qps", "ahs"] {
            assert_eq!(self.count(&format!("live_{kind}")), 0, "{kind} are left");
        }
    }
}

/// Each story of a file is a test, or is run by one (`@told`).
macro_rules! stories {
    ($($(#[$only:meta])* $test:ident,)* $(@told $told:ident,)*) => {
        mod stories {
            $($(#[$only])*
            #[test]
            fn $test() {
                if !crate::fake_ibverbs::is_guest(stringify!($test)) {
                    crate::faked::tell(stringify!($test), &[]);
                }
            })*
        }

        pub const STORIES: &[(&str, fn(&Fake))] =
            &[$($(#[$only])* (stringify!($test), $test),)* $((stringify!($told), $told),)*];
    };
}
