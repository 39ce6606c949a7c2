"""The commands as functions, without click or printing: pack a source, tokenize it, and examine or verify the result.

- `packing`: packs a source, unless the dataset is complete
- `tokenizing`: tokenizes text without packing it
- `write_shards`: makes and writes the shards of a plan
- `source_warnings`: warns of data that would silently ruin a training run, and records which records were left out
- `stats`: figures of any source, for the command and `packer.stats`, and the report file
- `collect_figures`: measures a source without its tokens, plans its rows, collects or compares their figures, and
  selects the rows of a report
- `row_contents`: the segments of a row, for the command `show` and `packer.show`
- `verifying`: checks a packed dataset, alone or against its source
"""
