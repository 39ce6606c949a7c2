"""Figures of datasets before and after packing: padding, efficiency, mixing, steps per epoch. No input or output.

- `distribution`: quantiles and bins of document lengths, or of segments per row
- `padding`: padding ratios of batching strategies, from a histogram of lengths
- `dataset_figures`: figures of a dataset before packing
- `packed_figures`: figures of a packed dataset
- `row_mixing`: how mixed rows are, and how evenly attention is divided among them
- `row_limits`: use of limited columns (`--limit`)
- `row_lengths`: figures of the same documents in rows of several lengths, to choose max_len by
- `report_figures`: everything that a report in HTML shows
- `model_work`: work of a 7B model on rows, and the share of attention in it
- `row_figures` and `algorithm_comparison`: figures of each algorithm's rows
"""
