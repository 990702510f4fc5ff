"""Lines of JSON for Schemathesis, which knows no media type for them."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines_of_json(ctx, value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="surrogatepass")
