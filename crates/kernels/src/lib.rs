//! Building blocks of the fused operations of the CPU backend.
//!
//! A fused operation is one node of the autodiff graph with a backward pass of its own ([`Fused`]): vectorized loops
//! ([`simd!`]) on all threads ([`threads`]). Each has a composed form made of burn's operations, which defines it, runs on
//! other backends and for types other than f32, and is the reference of the tests. [`composed`] selects the composed forms.
//! [`kinks`] makes piecewise functions differentiable by finite differences.
//!
//! Without AVX2 or AVX-512, or on another architecture than x86, the same loops are compiled for the baseline of the target.

#[cfg(feature = "flex")]
mod graph;
pub mod kinks;
pub mod math;
#[cfg(feature = "flex")]
mod matrix;
mod mode;
pub mod simd;
#[cfg(feature = "flex")]
pub mod threads;
#[cfg(feature = "flex")]
pub mod uninit;

#[cfg(feature = "flex")]
pub use graph::{FlexTensor, Fused, Native, contiguous, matrix, run, shape, slice, tensor, zeros};
#[cfg(feature = "flex")]
pub use matrix::{Matrix, column_sums, multiply, product, product_into, rows_of_a_thread};
pub use mode::{composed, is_fused};
