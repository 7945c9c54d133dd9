"""Base class of encodings that draw positions in training (randomized, pose)."""

from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Spectrum
from posbench.position.interfaces import Encoding, Layer


class Repositioned(Encoding):
    """Encoding that draws positions for another one, its `base`, which does all else."""

    random = True
    base: Encoding

    def check_base(self) -> None:
        """Raise ConfigError for a base whose positions are those of the text, not the drawn."""
        encodings = [self.base, *(layer.encoding for layer in self.base.layers())]
        if any(encoding.placed_by_content or encoding.reads_tokens for encoding in encodings):
            raise ConfigError(
                f"encoding.base={type(self.base).__name__} takes positions from the text, so none"
                " can be drawn for it: choose another base."
            )

    def layers(self) -> list[Layer]:
        return self.base.layers()

    def spectrum(self) -> Spectrum | None:
        return self.base.spectrum()

    def spectrum_at(self, length: int) -> Spectrum | None:
        return self.base.spectrum_at(length)

    def rows(self) -> Tensor | None:
        return self.base.rows()

    def embed(
        self, pos_T: Tensor, spectrum: Spectrum | None, rows_NC: Tensor | None
    ) -> Tensor | None:
        return self.base.embed(pos_T, spectrum, rows_NC)
