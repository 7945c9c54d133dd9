"""Positions of a running engine (posbench/engines), which are its own.

posbench asks it for losses and neither knows nor changes them. No formula. `engine` is its kind,
such as llama_cpp, and the other arguments are those it was started with, as far as they are known
here. No extension and no scale acts, but recompute_window, which only chooses the text that is
sent."""

from posbench.position.geometry import Shape
from posbench.position.interfaces import TESTED_WITH_ALL, Encoding, Layer


class Served(Encoding):
    """Layers on which no method acts."""

    tested_with = TESTED_WITH_ALL
    positions_known = False

    def __init__(self, shape: Shape, engine: str, **settings: object):
        super().__init__(shape)
        self.engine = engine
        self.settings = settings

    def layers(self) -> list[Layer]:
        return [
            Layer(self, extended=False, scaled=False, index=i) for i in range(self.shape.n_layer)
        ]
