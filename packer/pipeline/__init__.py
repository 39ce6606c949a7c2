"""The commands as functions, without click or printing: from a source to a plan, to shards, and back to the source.

- `packing`: packs a source; `tokenizing`: tokenizes text and stops there
- `output_place`: names outputs after their sources, and checks that they fit
- `job`: claims a dataset and chooses the engine that builds it
- `write_shards`: makes and writes the shards of a plan
- `source_warnings`: warns of what would silently ruin a training run; `rejected_list`: records that were left out
- `complete_output`: checks whether an existing output is intact and is what was requested
- `collect_figures`: measures a source without its tokens, plans its rows, and collects the figures that `stats` and
  reports show; `shown_rows`: the rows of a report
- `comparing`: runs every algorithm on the same lengths
- `verifying`: checks a packed dataset; `against_source`: its differences from a part of the source, and its totals
"""
