//! Depth-dependent constants of papers, for encoders and decoders.

/// The constants of DeepNorm (arXiv:2203.00555, table of section 3.2): alpha multiplies the stream, beta is the gain of
/// Xavier-normal value, output and MLP weights. A block is attention (both attentions in the decoder of an encoder-decoder)
/// and MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeepNorm {
    /// alpha = (2N)^(1/4), beta = (8N)^(-1/4).
    EncoderOnly {
        /// N.
        blocks: usize,
    },
    /// alpha = (2M)^(1/4), beta = (8M)^(-1/4).
    DecoderOnly {
        /// M.
        blocks: usize,
    },
    /// Encoder alpha = 0.81 (N^4 M)^(1/16), beta = 0.87 (N^4 M)^(-1/16); decoder alpha = (3M)^(1/4),
    /// beta = (12M)^(-1/4).
    EncoderDecoder {
        /// N.
        encoder: usize,
        /// M.
        decoder: usize,
    },
}

impl DeepNorm {
    /// (alpha, beta) of the encoder, if any.
    pub fn encoder(self) -> Option<(f64, f64)> {
        match self {
            Self::EncoderOnly { blocks } => Some(single(blocks)),
            Self::DecoderOnly { .. } => None,
            Self::EncoderDecoder { encoder, decoder } => {
                let size = ((encoder as f64).powi(4) * decoder as f64).powf(1.0 / 16.0);
                Some((0.81 * size, 0.87 / size))
            }
        }
    }

    /// (alpha, beta) of the decoder, if any.
    pub fn decoder(self) -> Option<(f64, f64)> {
        match self {
            Self::DecoderOnly { blocks } => Some(single(blocks)),
            Self::EncoderOnly { .. } => None,
            Self::EncoderDecoder { decoder, .. } => {
                let m = decoder as f64;
                Some(((3.0 * m).powf(0.25), (12.0 * m).powf(-0.25)))
            }
        }
    }
}

fn single(blocks: usize) -> (f64, f64) {
    let n = blocks as f64;
    ((2.0 * n).powf(0.25), (8.0 * n).powf(-0.25))
}

/// Gain of value, output and MLP weights under Sub-LN, in an encoder-only or decoder-only model: `sqrt(ln 2N)`
/// (arXiv:2210.06423, table 2). It is below 1 for one block.
pub fn sub_norm_gain(blocks: usize) -> f64 {
    (2.0 * blocks as f64).ln().sqrt()
}

/// Gains of Sub-LN in an encoder of N blocks and a decoder of M blocks: `sqrt(ln(3M) ln(2N) / 3)` and `sqrt(ln 3M)`
/// (arXiv:2210.06423, table 2).
pub fn sub_norm_gains(encoder: usize, decoder: usize) -> (f64, f64) {
    let (n, m) = ((2.0 * encoder as f64).ln(), (3.0 * decoder as f64).ln());
    ((m * n / 3.0).sqrt(), m.sqrt())
}

/// NFNet's beta of every block of stages of the given depths, by which the input of the block is divided: the root of the
/// analytic variance of the stream, which grows by `alpha^2` per block and is reset to `1 + alpha^2` by the first block of a
/// later stage, whose shortcut reads the scaled input (arXiv:2102.06171, section 2). A Transformer is one stage; its
/// branches are the blocks.
pub fn nfnet_betas(alpha: f64, stages: &[usize]) -> Vec<f64> {
    let mut betas = Vec::new();
    let mut variance = 1.0;
    for depth in stages {
        for block in 0..*depth {
            betas.push(f64::sqrt(variance));
            variance = if block == 0 { 1.0 } else { variance } + alpha * alpha;
        }
    }
    betas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn deep_norm_has_the_papers_constants() {
        for (blocks, alpha, beta) in
            [(1, 1.189207, 0.594604), (6, 1.861210, 0.379918), (24, 2.632148, 0.268642), (1000, 6.687403, 0.105737)]
        {
            let (a, b) = DeepNorm::DecoderOnly { blocks }.decoder().unwrap();
            assert!(close(a, alpha) && close(b, beta));
            assert_eq!(DeepNorm::EncoderOnly { blocks }.encoder(), Some((a, b)));
        }
        for (encoder, decoder, [ea, eb, da, db]) in [
            (6, 6, [1.417938, 0.496989, 2.059767, 0.343295]),
            (18, 18, [1.998746, 0.352571, 2.710806, 0.260847]),
            (12, 3, [1.614732, 0.436419, 1.732051, 0.408248]),
        ] {
            let both = DeepNorm::EncoderDecoder { encoder, decoder };
            let ((a, b), (c, d)) = (both.encoder().unwrap(), both.decoder().unwrap());
            assert!(close(a, ea) && close(b, eb) && close(c, da) && close(d, db));
        }
        assert_eq!(DeepNorm::DecoderOnly { blocks: 2 }.encoder(), None);
        assert_eq!(DeepNorm::EncoderOnly { blocks: 2 }.decoder(), None);
    }

    #[test]
    fn sub_norm_has_the_papers_gains() {
        for (blocks, gain) in [(1, 0.832555), (6, 1.576359), (24, 1.967537), (48, 2.136434)] {
            assert!(close(sub_norm_gain(blocks), gain));
        }
        let ((e6, d6), (e12, d12)) = (sub_norm_gains(6, 6), sub_norm_gains(12, 12));
        assert!(close(e6, 1.547288) && close(d6, 1.700109) && close(e12, 1.948385) && close(d12, 1.893018));
    }

    #[test]
    fn nfnet_betas_are_those_of_the_authors_network() {
        let beta = [
            1.0, 0.980581, 0.980581, 0.96225, 0.980581, 0.96225, 0.944911, 0.928477, 0.912871, 0.898027, 0.980581,
            0.96225,
        ];
        let ours = nfnet_betas(0.2, &[1, 2, 6, 3]);
        assert_eq!(ours.len(), beta.len());
        for (i, (ours, theirs)) in ours.into_iter().zip(beta).enumerate() {
            assert!(close(1.0 / ours, theirs), "block {i}: {}", 1.0 / ours);
        }
    }
}
