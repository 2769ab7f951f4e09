//! The three ways to put one key, which have one form wherever keys are put.

/// `put`, `insert` and `update` of a class whose `put_one(py, key, value, (mode, ttl))` puts.
macro_rules! puts {
    ($class:ty) => {
        #[pyo3::pymethods]
        impl $class {
            /// Inserts the key, or updates its value. Whether it is new.
            #[pyo3(signature = (key, value, /, *, ttl=None))]
            fn put(
                &self,
                py: Python<'_>,
                key: &Bound<'_, PyAny>,
                value: &Bound<'_, PyAny>,
                ttl: Option<f64>,
            ) -> PyResult<bool> {
                Ok(self.put_one(py, key, value, (PutMode::Upsert, ttl))? == PutOutcome::Inserted)
            }

            /// Inserts the key if it is absent. Whether it was.
            #[pyo3(signature = (key, value, /, *, ttl=None))]
            fn insert(
                &self,
                py: Python<'_>,
                key: &Bound<'_, PyAny>,
                value: &Bound<'_, PyAny>,
                ttl: Option<f64>,
            ) -> PyResult<bool> {
                Ok(self.put_one(py, key, value, (PutMode::Insert, ttl))? == PutOutcome::Inserted)
            }

            /// Updates the key's value if it is present. Whether it was.
            #[pyo3(signature = (key, value, /, *, ttl=None))]
            fn update(
                &self,
                py: Python<'_>,
                key: &Bound<'_, PyAny>,
                value: &Bound<'_, PyAny>,
                ttl: Option<f64>,
            ) -> PyResult<bool> {
                Ok(self.put_one(py, key, value, (PutMode::Update, ttl))? == PutOutcome::Updated)
            }
        }
    };
}
pub(crate) use puts;
