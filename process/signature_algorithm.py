"""The one algorithm of signed decisions, as joserfc takes it: for who signs and for who verifies.

Imported when somebody signs or verifies, not at the start: joserfc costs a tenth of a second.
"""

from __future__ import annotations

from typing import Final

from joserfc.jws import JWSRegistry

from surehand.workflows.contracts.signing import ALGORITHM


class _Pinned(JWSRegistry):
    # RFC 9864 deprecates the name EdDSA, because it leaves the curve open, and joserfc warns of it.
    # Here it is not open: the name stands for RFC 9864's Ed25519, which takes no other curve.
    algorithms = {ALGORITHM: JWSRegistry.algorithms["Ed25519"]}


#: ``alg`` may be :data:`ALGORITHM` with a key on Ed25519; there is no other.
PINNED: Final = _Pinned(algorithms=[ALGORITHM])
