//! A cell of a model, with all the values that it had.

/// A cell and when it got each of its values.
pub struct History<X>(pub Vec<(i64, X)>);

impl<X: Copy> History<X> {
    pub fn new(first: X) -> History<X> {
        History(vec![(-1, first)])
    }

    pub fn now(&self) -> X {
        self.0[self.0.len() - 1].1
    }

    pub fn at(&self, time: i64) -> X {
        self.0[self.0.partition_point(|&(t, _)| t <= time) - 1].1
    }
}
