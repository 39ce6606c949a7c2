"""Figures of datasets before and after packing, and the text, pages and plots that show them. Nothing here prints.

measures.py  quantiles and bins of lengths, padding ratios of batches, and measures of rows, summed while they are read
figures.py   `Figures`, all that is known of a dataset and its rows; `Comparison`, which of several is best
page.py      the report in HTML, made of page.html.jinja, style.css and script.js
charts.py    plots as SVG, in a page or in a file
"""
