//! Slots: attributes that a Python class names in `__slots__`, read and replaced where they lie in an object. With unsafe
//! code.
//!
//! A put reads and changes some thirty attributes. By name each of them takes about 40 ns, together half of a put.
#![allow(unsafe_code)]

use std::ffi::CStr;

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// One slot of the objects of one class.
pub struct Slot {
    class: Py<PyType>,
    name: &'static CStr,
    /// Bytes from the beginning of an object to the pointer of its attribute.
    offset: isize,
}

impl Slot {
    /// Find the slot of this name that *class*, or a class that it is derived from, has.
    pub fn of(class: &Bound<'_, PyType>, name: &'static CStr) -> PyResult<Slot> {
        for base in class.mro().iter() {
            if let Ok(base) = base.cast::<PyType>()
                && let Some(offset) = offset_of(base, name)
            {
                return Ok(Slot { class: class.clone().unbind(), name, offset });
            }
        }
        Err(PyTypeError::new_err(format!("the class has no such slot: class={class} name={name:?}")))
    }

    /// Return the attribute of *object*, which must be exactly of the class.
    pub fn get<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the slot holds null or a pointer to an object, whose count the copy adds to.
        unsafe { Bound::from_borrowed_ptr_or_opt(object.py(), *self.place(object)?) }
            .ok_or_else(|| PyAttributeError::new_err(format!("the attribute has no value: name={:?}", self.name)))
    }

    /// Give the attribute of *object*, which must be exactly of the class, another value.
    pub fn set(&self, object: &Bound<'_, PyAny>, value: Bound<'_, PyAny>) -> PyResult<()> {
        let place = self.place(object)?;
        // SAFETY: the slot owns what it points to: it gets the pointer of *value*, and what it had belongs to `before`. No
        // Python code runs in between.
        let before = unsafe { Bound::from_owned_ptr_or_opt(object.py(), place.replace(value.into_ptr())) };
        drop(before);
        Ok(())
    }

    fn place(&self, object: &Bound<'_, PyAny>) -> PyResult<*mut *mut ffi::PyObject> {
        if object.get_type_ptr().cast::<ffi::PyObject>() != self.class.as_ptr() {
            return Err(PyTypeError::new_err(format!("the object is not of the class: class={}", self.class)));
        }
        // SAFETY: an object of this class has a pointer there, as its class has told, and the interpreter's lock is held,
        // with which alone it changes.
        Ok(unsafe { object.as_ptr().byte_offset(self.offset).cast() })
    }
}

/// Return where the objects of *class* have the slot of this name; `None`: the class itself names none.
fn offset_of(class: &Bound<'_, PyType>, name: &CStr) -> Option<isize> {
    // SAFETY: a class has null there, or its members up to one without a name.
    unsafe {
        let mut member = ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_members).cast::<ffi::PyMemberDef>();
        if member.is_null() {
            // A class that the interpreter's own code made may have no such function.
            ffi::PyErr_Clear();
            return None;
        }
        while !(*member).name.is_null() {
            if CStr::from_ptr((*member).name) == name && (*member).type_code == ffi::Py_T_OBJECT_EX {
                return Some((*member).offset);
            }
            member = member.add(1);
        }
    }
    None
}

/// A class whose objects are only slots, made by `object.__new__`.
pub struct PlainClass(Py<PyType>);

impl PlainClass {
    /// Check *class*.
    pub fn of(class: &Bound<'_, PyType>) -> PyResult<PlainClass> {
        let object = class.py().get_type::<PyAny>();
        // SAFETY: every class has such a function, or null. They are compared only.
        let is_plain = unsafe {
            ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_new)
                == ffi::PyType_GetSlot(object.as_type_ptr(), ffi::Py_tp_new)
        };
        if !is_plain {
            return Err(PyTypeError::new_err(format!("the class makes its objects itself: class={class}")));
        }
        Ok(PlainClass(class.clone().unbind()))
    }

    /// Return a new object, whose slots have no values yet.
    pub fn new_object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: `object.__new__` does no more for such a class. Slots without values are null, as they are in new memory.
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(self.0.bind(py).as_type_ptr(), 0)) }
    }
}
