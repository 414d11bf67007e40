"""One recurrent layer on a GPU: ours on rows, and PyTorch's, packed and padded, on the same GPU in the same process."""
