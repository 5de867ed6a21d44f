//! How many inputs and outputs a weight connects.

/// Inputs that feed one output, and outputs that one input feeds, at stride 1 and away from borders.
///
/// PyTorch reads its fans from the shape of the weight alone: for a grouped convolution its `fan_out` is not divided
/// by the groups, and for a transposed one its two numbers are swapped. [`Fans::torch`] gives those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fans {
    /// Inputs of one output.
    pub fan_in: usize,
    /// Outputs of one input.
    pub fan_out: usize,
}

impl Fans {
    /// A linear layer. A packed projection, as of queries, keys and values together, has the fans of one of them.
    pub fn linear(inputs: usize, outputs: usize) -> Self {
        Self { fan_in: inputs, fan_out: outputs }
    }

    /// A convolution with `kernel` taps in all, of `groups` groups: depthwise where there are as many groups as
    /// inputs.
    pub fn convolution(inputs: usize, outputs: usize, kernel: usize, groups: usize) -> Self {
        Self { fan_in: inputs / groups * kernel, fan_out: outputs / groups * kernel }
    }

    /// A transposed convolution, as [`Fans::convolution`]: every input feeds `kernel` places of the
    /// outputs of its group.
    pub fn transposed_convolution(inputs: usize, outputs: usize, kernel: usize, groups: usize) -> Self {
        Self::convolution(inputs, outputs, kernel, groups)
    }

    /// A table of which one row is read at a time: fan_in is 1, whatever the number of entries, and a variance of
    /// 1 / fan_in is 1. Embeddings have an explicit standard deviation instead.
    pub fn embedding(width: usize) -> Self {
        Self { fan_in: 1, fan_out: width }
    }

    /// PyTorch's `_calculate_fan_in_and_fan_out` of a weight of this shape, `[out, in, kernel ..]`.
    pub fn torch(shape: &[usize]) -> Option<Self> {
        let [first, second, kernel @ ..] = shape else { return None };
        let taps: usize = kernel.iter().product();
        Some(Self { fan_in: second * taps, fan_out: first * taps })
    }
}
