//! libibverbs, loaded when it is needed.
//!
//! The library is opened with `dlopen`, so one binary runs everywhere. Without `libibverbs.so.1`,
//! what needs it returns an error and everything else works. (A program linked to a missing library
//! does not start, and a second binary would have to be kept in step.) Types and signatures are
//! those of `ibverbs-sys`; the compiler checks them in `same_signatures`.

#![allow(unsafe_code)]

use super::error::SetupError;
use ibverbs::ibv_wc;
use ibverbs_sys::*;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the loaded library.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &libloading::Library) -> Result<Functions, libloading::Error> {
                Ok(Functions {
                    $(
                        // SAFETY: the symbol is a function of libibverbs' stable ABI with this
                        // signature (`same_signatures`), and the library is never unloaded.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes())? },
                    )*
                })
            }
        }

        /// Never called. It compiles only if the signatures above are those of the headers.
        #[expect(dead_code, reason = "for the compiler to check")]
        fn same_signatures() {
            $(let _: unsafe extern "C" fn($($argument),*) $(-> $result)? = ibverbs_sys::$name;)*
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_get_device_name(*mut ibv_device) -> *const c_char;
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(*mut ibv_async_event);
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
    _ibv_query_gid_table(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, c_uint);
    ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq(*mut ibv_srq) -> c_int;
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
}

/// The library's file name.
const LIBRARY: &str = "libibverbs.so.1";

/// The loaded library. The first call loads it; later calls return the same result. It is never
/// unloaded: its functions may be called until the process ends.
///
/// # Errors
/// [`SetupError::Library`] when it is not there.
pub(crate) fn library() -> Result<&'static libloading::Library, SetupError> {
    static LOADED: OnceLock<Result<libloading::Library, Arc<libloading::Error>>> = OnceLock::new();
    // SAFETY: libibverbs' initialisers only read the environment and its configuration files.
    let loaded = LOADED.get_or_init(|| unsafe { libloading::Library::new(LIBRARY) }.map_err(Arc::new));
    loaded.as_ref().map_err(|why| SetupError::Library { source: why.clone() })
}

/// The functions of the loaded library.
///
/// # Errors
/// [`SetupError::Library`] when it is not there or lacks a function.
pub(super) fn functions() -> Result<&'static Functions, SetupError> {
    static FOUND: OnceLock<Result<Functions, Arc<libloading::Error>>> = OnceLock::new();
    let library = library()?;
    let found = FOUND.get_or_init(|| Functions::of(library).map_err(Arc::new));
    found.as_ref().map_err(|why| SetupError::Library { source: why.clone() })
}

/// A completion as libibverbs writes it.
pub(crate) type Completion = ibv_wc;
