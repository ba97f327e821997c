"""HTTP to the servers of a test."""

from functools import partial

import httpx

# Nothing there speaks TLS, and to read the certificates for it takes 30 ms a client.
loopback_client = partial(httpx.AsyncClient, verify=False)
