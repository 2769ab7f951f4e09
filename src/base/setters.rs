//! The macro that writes setters for option structs.

/// Gives an option struct one setter per listed field, with the field's name. Option structs are
/// `non_exhaustive`; setters let other crates fill them in, also after a field is added.
macro_rules! setters {
    ($options:ident { $($(#[$attribute:meta])* $field:ident: $value:ty),* $(,)? }) => {
        impl $options {
            $(
                #[doc = concat!("Returns these options with `", stringify!($field), "` replaced.")]
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
