//! Writes msgpack, for publishers of tests and measurements.

use rmp::encode;

/// A value to write.
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing.
    Nil,
    /// A number.
    Number(u64),
    /// A number, written as one with a sign.
    Signed(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Value>),
    /// A map.
    Map(Vec<(&'static str, Value)>),
}

impl Value {
    /// A text.
    pub fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    /// A list of numbers.
    pub fn numbers(numbers: impl IntoIterator<Item = u64>) -> Value {
        Value::List(numbers.into_iter().map(Value::Number).collect())
    }
}

/// The bytes of a value.
pub fn pack(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, value);
    bytes
}

fn put(bytes: &mut Vec<u8>, value: &Value) {
    // A `Vec` takes all bytes: none of these fails.
    match value {
        Value::Nil => drop(encode::write_nil(bytes)),
        Value::Number(number) => drop(encode::write_uint(bytes, *number)),
        Value::Signed(number) => drop(encode::write_sint(bytes, *number)),
        Value::Float(number) => drop(encode::write_f64(bytes, *number)),
        Value::Text(text) => drop(encode::write_str(bytes, text)),
        Value::Bytes(all) => drop(encode::write_bin(bytes, all)),
        Value::List(items) => {
            drop(encode::write_array_len(bytes, items.len() as u32));
            items.iter().for_each(|item| put(bytes, item));
        }
        Value::Map(pairs) => {
            drop(encode::write_map_len(bytes, pairs.len() as u32));
            for (name, value) in pairs {
                drop(encode::write_str(bytes, name));
                put(bytes, value);
            }
        }
    }
}
