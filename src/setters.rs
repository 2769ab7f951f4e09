//! Setters of option structs.

/// Gives a struct a setter for each field named, called as the field is. So options can be put together
/// from outside the crate, also when a field is added.
macro_rules! setters {
    ($options:ident { $($(#[$attribute:meta])* $field:ident: $value:ty),* $(,)? }) => {
        impl $options {
            $(
                #[doc = concat!("The same with another `", stringify!($field), "`.")]
                $(#[$attribute])*
                #[must_use]
                pub fn $field(mut self, $field: $value) -> $options {
                    self.$field = $field.into();
                    self
                }
            )*
        }
    };
}
pub(crate) use setters;
