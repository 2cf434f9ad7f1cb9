//! One way to show a core struct to Python: a frozen class that holds it, with a property per field.

/// `view!(/// doc; PyName of core::Type, "PythonName" { field: type = |it| expr, … })`.
macro_rules! view {
    ($(#[doc = $doc:expr])* $name:ident of $core:ty, $python:literal {
        $($(#[doc = $field_doc:expr])* $field:ident: $kind:ty = |$it:ident| $value:expr;)*
    } $($methods:item)*) => {
        $(#[doc = $doc])*
        #[pyo3::pyclass(frozen, eq, module = "hisparse_svc", name = $python)]
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $name(pub(crate) $core);

        #[pyo3::pymethods]
        impl $name {
            $($(#[doc = $field_doc])*
            #[getter]
            fn $field(&self) -> $kind {
                let $it = &self.0;
                $value
            })*

            $($methods)*

            fn __repr__(&self) -> String {
                format!(concat!($python, "({})"), crate::convert::brief(&self.0))
            }
        }
    };
}

pub(crate) use view;
