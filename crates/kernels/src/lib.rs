//! What fused operations of the CPU backend share.
//!
//! A fused operation is one node of the graph with a backward pass of its own ([`Fused`]), made of loops that
//! the compiler vectorizes ([`simd!`]) and that run on all threads ([`threads`]). Each stands beside its
//! composed twin, which says what it computes, is what other backends and other types than f32 run, and what
//! the tests compare it with. [`composed`] switches to the twins. [`kinks`] holds the pieces of functions that have some.
//!
//! On a machine without AVX-512 or AVX2, or one that is not x86, the same loops are compiled for what it has.

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
