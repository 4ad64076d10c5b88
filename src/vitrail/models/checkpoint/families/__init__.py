"""How the peers keep the models of each family but the plain ViT; a family's file adds its line here."""

from vitrail.models.checkpoint.translation import Translation

TRANSLATIONS: tuple[Translation, ...] = ()
