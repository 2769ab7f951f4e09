//! The laboratory of [`oneread`]: what measures it, and what predicts it.
//!
//! [`plan`] is the arithmetic behind `oneread plan`.

pub mod plan;
