"""The page at `/`: every GPU of the node, with the memory of each pod compared with its share.

`top` and `sections` decide what the page shows, `rows`, `bars` and `past` prepare one pod and one drawing,
and `renderer` turns the result into HTML by the templates. The page is complete without JavaScript;
`static/page.js` reloads it.
"""
