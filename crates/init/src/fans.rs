//! Fan-in and fan-out of weights.

/// Number of inputs of one output and of outputs of one input, at stride 1 and away from borders.
///
/// PyTorch computes fans from the shape of the weight alone, as [`Fans::torch`]: `fan_out` of a grouped convolution is not
/// divided by the groups, and the fans of a transposed convolution are swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fans {
    /// Number of inputs of one output.
    pub fan_in: usize,
    /// Number of outputs of one input.
    pub fan_out: usize,
}

impl Fans {
    /// Fans of a linear layer. A packed projection, as of queries, keys and values, has the fans of one of them.
    pub fn linear(inputs: usize, outputs: usize) -> Self {
        Self { fan_in: inputs, fan_out: outputs }
    }

    /// Fans of a convolution with `kernel` taps in total and `groups` groups; depthwise if `groups = inputs`.
    pub fn convolution(inputs: usize, outputs: usize, kernel: usize, groups: usize) -> Self {
        Self { fan_in: inputs / groups * kernel, fan_out: outputs / groups * kernel }
    }

    /// Fans of a transposed convolution, as [`Fans::convolution`]: every input feeds `kernel` positions of the outputs of its
    /// group.
    pub fn transposed_convolution(inputs: usize, outputs: usize, kernel: usize, groups: usize) -> Self {
        Self::convolution(inputs, outputs, kernel, groups)
    }

    /// Fans of an embedding: fan_in is 1 for any number of entries, because one row is read at a time. Schemes do not use it:
    /// embeddings have an explicit standard deviation.
    pub fn embedding(width: usize) -> Self {
        Self { fan_in: 1, fan_out: width }
    }

    /// PyTorch's `_calculate_fan_in_and_fan_out` of a weight of shape `[out, in, kernel ..]`; None for fewer than two axes.
    pub fn torch(shape: &[usize]) -> Option<Self> {
        let [first, second, kernel @ ..] = shape else { return None };
        let taps: usize = kernel.iter().product();
        Some(Self { fan_in: second * taps, fan_out: first * taps })
    }
}
