"""The commands as functions, without click or printing: from a source to a plan, to shards, and back to the source.

- `packing`: packs a source, unless the dataset is complete; `tokenizing`: tokenizes text and stops there
- `write_shards`: makes and writes the shards of a plan
- `source_warnings`: says what would silently ruin a training run, and which records were left out
- `stats`: the figures of any source, for the command and `packer.stats`, and the file of a report
- `collect_figures`: measures a source without its tokens, plans its rows, collects or compares their figures, and
  chooses the rows of a report
- `row_contents`: the segments of a row, for the command `show` and `packer.show`
- `verifying`: checks a packed dataset, alone or against its source
"""
