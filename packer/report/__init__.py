"""Figures of datasets before and after packing, and the text, pages and plots that show them. Nothing here prints.

Numbers:

- `length_figures`: quantiles and bins of lengths, and padding ratios of batching strategies
- `row_figures`: figures of rows, summed while they are read: mixing, the work of attention
- `dataset_figures`: `Figures`, all that is known of a dataset and its rows
- `comparison`: `Comparison`, the figures of several row lengths or algorithms, and which is best

What shows them:

- `plain_text`: columns, bars and formatted numbers
- `page`: the report in HTML, made of `page.html.jinja`, `style.css` and `script.js`
- `charts`: plots as SVG, in a page or in a file
"""
