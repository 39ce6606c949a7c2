"""Figures of datasets before and after packing: padding, efficiency, mixing, steps per epoch. No input or output.

- `distribution`: quantiles and bins of document lengths, or of segments per row
- `padding`: padding ratios of batching strategies, from a histogram of lengths
- `row_figures`: figures of rows, summed while they are read: mixing, the work of attention, limited columns
- `dataset_figures`: `Figures`, all that is known of a dataset and its rows, and `RowLengths`, to choose max_len by
- `algorithm_comparison`: figures of each algorithm's rows side by side
"""
