"""Figures of datasets before and after packing, and the text, pages and plots that show them. Nothing here prints.

measures.py  quantiles and bins of lengths, padding ratios of batches, and measures of rows
figures.py   `Figures`, all figures of a dataset and its rows; `Comparison`, the best of several figures
page.py      the report in HTML, made of page.html.jinja, style.css and script.js
charts.py    plots of the page, as SVG
"""
