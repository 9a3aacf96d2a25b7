"""CUDA graphs: kernels captured once and replayed, for training and for decoding."""
