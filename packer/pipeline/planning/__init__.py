"""Planning: which documents share a row, and which rows a shard has.

make_plan.py     a plan of any kind; plans by partitions are in `packer.pipeline.partitions`
surveying.py     one pass over the documents: counts, a histogram and blocks
order_plan.py    rows that follow the order of the source
group_plan.py    groups of documents, kept together or apart
limit_plan.py    rows with limits besides tokens
"""
