"""Several sources with weights, read as one sequence of documents.

mixture.py       the mixture, with the interface of a source
draw_mixture.py  which documents of each source are taken, and how often
origins.py       the source, document and copy that each document comes from
"""
