"""The commands as functions, without click or printing: from a source to a plan, to shards, and back to the source.

- `packing`: packs a source; `tokenizing`: tokenizes text and stops there; `name_output`: where they write by default
- `appending`: adds documents to a packed dataset
- `job`: claims a dataset and chooses the engine that builds it, for `packing`, `appending` and `materializing`
- `open_inputs`, `read_documents`: open a source or a mixture, and read it as one sequence of documents
- `segments/`: documents cut into segments
- `planning/`: plans the rows; `partitions/`: plans of histogram algorithms
- `shard_maker`, `write_shards`: make and write the shards of a plan
- `materializing`: writes the rows of an index with their tokens; `packed_source`: opens the source of a packed dataset
- `complete_output`: checks whether an existing output is intact and is what was requested
- `watch_source`, `disk_space`: check that source files do not change, and that rows fit
- `measure_source`: reads the lengths of documents without tokens, and plans rows for `collect_figures` and `comparing`
- `collect_figures`: collects the figures that `stats` and reports show; `shown_rows`: the rows of a report
- `comparing`: runs every algorithm on the same lengths
- `verifying`: checks a packed dataset; `against_source`: compares it with its source; `recounting`: counts its totals
  again
"""
