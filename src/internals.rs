//! What the tests, benches, fuzz targets and commands of this repository use besides. They are not for others.
//!
//! Everything here may change or go in any version, also in one that changes nothing else. It has no
//! pages: read the source. If you need something of it, ask for it: then it gets a page and a promise.

/// A page here for each internal module: whatever it has that is not private.
macro_rules! opened {
    ($($(#[$attribute:meta])* $module:ident)*) => {
        $($(#[$attribute])* #[doc(hidden)] pub mod $module { pub use crate::$module::*; })*
    };
}

opened! {
    client
    config
    faults
    files
    get
    hints
    index
    inspect
    outcome
    placement
    reader
    region
    server
    verbs
    wire
    #[cfg(feature = "sim")]
    sim
}

#[doc(hidden)]
pub mod units {
    pub use crate::base::units::*;
}

#[doc(hidden)]
pub mod breaking {
    pub use crate::client::breaking::*;
}

#[doc(hidden)]
pub mod tries {
    pub use crate::client::tries::*;
}

#[doc(hidden)]
pub mod peer {
    pub use crate::base::peer::*;
}

#[doc(hidden)]
pub mod conversations {
    pub use crate::base::conversations::*;
}

#[doc(hidden)]
pub mod proof {
    pub use crate::wire::proof::*;
}

#[doc(hidden)]
pub mod families {
    pub use crate::placement::families::*;
}

#[doc(hidden)]
pub mod words {
    pub use crate::error::words::*;
}

#[doc(hidden)]
pub mod fabric {
    pub use crate::fabric::*;
    pub mod landed {
        pub use crate::fabric::landed::*;
    }
    pub mod shm {
        pub use crate::fabric::shm::*;
    }
}

#[doc(hidden)]
pub mod layout {
    pub use crate::layout::*;
    pub mod chain {
        pub use crate::layout::chain::*;
    }
    pub mod control {
        pub use crate::layout::control::*;
    }
    pub mod extent {
        pub use crate::layout::extent::*;
    }
    pub mod geometry {
        pub use crate::layout::geometry::*;
    }
    pub mod hash {
        pub use crate::layout::hash::*;
    }
    pub mod segment {
        pub use crate::layout::segment::*;
    }
    pub mod slot {
        pub use crate::layout::slot::*;
    }
    pub mod superblock {
        pub use crate::layout::superblock::*;
    }
}

#[doc(hidden)]
pub mod snapshot {
    pub use crate::snapshot::*;
}
