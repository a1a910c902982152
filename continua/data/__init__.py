"""Data: PDE solvers, corpora and tokenisers, series, pairs of functions, and the cache that keeps them."""

from continua.data.augmentation import Change
from continua.data.burgers import burgers_pairs
from continua.data.corpus import Corpus, from_file, python_source
from continua.data.darcy import darcy_pairs
from continua.data.diffusion import diffusion_points
from continua.data.docstrings import (
    Docstring,
    Docstrings,
    docstrings,
    library_sentences,
    package_docstrings,
    sentences,
    spread,
)
from continua.data.documents import documents, sources_in, units_of
from continua.data.elasticity import elasticity_meshes
from continua.data.field_files import FieldFiles, built_fields
from continua.data.generation import generator_for
from continua.data.images import digit_images, fashion_images, observed_pixels, point_sets, read_idx, resampled
from continua.data.labelled import LabelledTexts, labelled_texts
from continua.data.mesh import Mesh
from continua.data.mesh_files import read_mesh
from continua.data.mesh_pairs import MeshPairs
from continua.data.mesh_store import generated_meshes
from continua.data.navier_stokes import vorticity_pairs, vorticity_paths
from continua.data.pairs import Pairs, lattice
from continua.data.poisson import poisson_meshes
from continua.data.polygons import Polygon, meshed, random_polygon
from continua.data.ragged import Ragged
from continua.data.solids import Solid, random_solid, solid_mesh
from continua.data.sound import Sound, read_wav
from continua.data.spectrogram import log_mel
from continua.data.store import cached, generated
from continua.data.token_files import TokenFiles, built
from continua.data.tokens import BytePairs, Characters, Tokeniser
from continua.data.turbulence import turbulence_pairs, turbulence_paths

__all__ = [
    "BytePairs",
    "Change",
    "Characters",
    "Corpus",
    "Docstring",
    "Docstrings",
    "FieldFiles",
    "LabelledTexts",
    "Mesh",
    "MeshPairs",
    "Pairs",
    "Polygon",
    "Ragged",
    "Solid",
    "Sound",
    "TokenFiles",
    "Tokeniser",
    "built",
    "built_fields",
    "burgers_pairs",
    "cached",
    "darcy_pairs",
    "diffusion_points",
    "digit_images",
    "docstrings",
    "package_docstrings",
    "documents",
    "elasticity_meshes",
    "fashion_images",
    "from_file",
    "generated",
    "generated_meshes",
    "generator_for",
    "labelled_texts",
    "lattice",
    "library_sentences",
    "log_mel",
    "meshed",
    "observed_pixels",
    "point_sets",
    "poisson_meshes",
    "python_source",
    "random_polygon",
    "random_solid",
    "read_idx",
    "read_wav",
    "read_mesh",
    "resampled",
    "sentences",
    "solid_mesh",
    "sources_in",
    "spread",
    "turbulence_pairs",
    "turbulence_paths",
    "units_of",
    "vorticity_pairs",
    "vorticity_paths",
]
