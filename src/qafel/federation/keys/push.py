"""Changes of accounts, sent to a broker that runs, through its system account."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from qafel.errors import BrokerError, MissingExtraError
from qafel.federation.keys import jwt
from qafel.federation.keys.credentials import Key, credentials
from qafel.federation.subjects import inbox
from qafel.federation.transport import connection

AT_ONCE = 64
"""Accounts that are being sent at the same time."""
SECONDS = 10.0


async def push_accounts(url: str, key: Key, tokens: Sequence[str]) -> None:
    """Give a running broker the tokens of accounts; it cuts the connections that these no longer admit."""
    try:
        from nats.errors import Error
    except ImportError as error:
        raise MissingExtraError("a connection to a broker", "federation") from error
    nc, places = connection(url), asyncio.Semaphore(AT_ONCE)

    async def quiet(error: Exception) -> None:
        del error

    async def send(token: str) -> None:
        async with places:
            answer = await nc.request(jwt.SYSTEM_CALLS[0], token.encode(), timeout=SECONDS)
        said = msgspec.json.decode(answer.data)
        if "error" in said:
            raise BrokerError(f"{url} refused an account: {said['error'].get('description', said['error'])}")

    options: dict[str, Any] = {
        "inbox_prefix": inbox("system").encode(),
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.2,
        "connect_timeout": 5,
        "error_cb": quiet,
        **credentials(url, key),
    }
    try:
        await nc.connect([one.strip() for one in url.split(",")], **options)
        try:
            await asyncio.gather(*(send(token) for token in tokens))
        finally:
            await nc.close()
    except (OSError, TimeoutError, Error) as error:
        raise BrokerError(f"{url} does not answer: {error or type(error).__name__}") from error
