"""Known models as plain functions, one file a family; none has forward code of its own."""

from continua.models.transformer import Transformer
from continua.models.zoo.albert import albert
from continua.models.zoo.bart import BartStyle, bart
from continua.models.zoo.bert import bert
from continua.models.zoo.clip import ClipSide, clip, clip_images, clip_texts
from continua.models.zoo.cross_modal import cross_modal
from continua.models.zoo.deit import deit
from continua.models.zoo.dinov2 import dinov2
from continua.models.zoo.distilbert import distilbert
from continua.models.zoo.electra import electra
from continua.models.zoo.evolution import evolution
from continua.models.zoo.falcon import FalconStyle, falcon
from continua.models.zoo.forecaster import forecaster
from continua.models.zoo.functions import function_map
from continua.models.zoo.gat import gat
from continua.models.zoo.gemma2 import Gemma2Style, gemma2
from continua.models.zoo.gemma3 import gemma3
from continua.models.zoo.gpt2 import gpt2
from continua.models.zoo.gpt_j import GPTJStyle, gpt_j
from continua.models.zoo.gpt_neox import NeoXStyle, gpt_neox
from continua.models.zoo.images import image_classifier
from continua.models.zoo.llama import LlamaStyle, Mixture, llama
from continua.models.zoo.mbart import marian, mbart
from continua.models.zoo.meshes import LatentAttention, mesh_map
from continua.models.zoo.mistral import mistral
from continua.models.zoo.mixtral import mixtral
from continua.models.zoo.modernbert import ModernBertStyle, modernbert
from continua.models.zoo.opt import OPTStyle, opt
from continua.models.zoo.phi3 import phi3
from continua.models.zoo.qwen2 import qwen2
from continua.models.zoo.qwen3 import qwen3
from continua.models.zoo.roberta import roberta
from continua.models.zoo.series import series_classifier, series_forecaster
from continua.models.zoo.smollm3 import smollm3
from continua.models.zoo.t5 import T5_10, T5_11, T5Style, t5
from continua.models.zoo.vit import vit
from continua.models.zoo.whisper import whisper

continuous = Transformer.continuous

__all__ = [
    "T5_10",
    "T5_11",
    "Gemma2Style",
    "BartStyle",
    "ClipSide",
    "FalconStyle",
    "GPTJStyle",
    "LatentAttention",
    "LlamaStyle",
    "Mixture",
    "ModernBertStyle",
    "NeoXStyle",
    "OPTStyle",
    "T5Style",
    "albert",
    "bart",
    "bert",
    "clip",
    "clip_images",
    "clip_texts",
    "continuous",
    "cross_modal",
    "deit",
    "dinov2",
    "distilbert",
    "electra",
    "evolution",
    "falcon",
    "forecaster",
    "function_map",
    "gat",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_j",
    "gpt_neox",
    "image_classifier",
    "llama",
    "marian",
    "mbart",
    "mesh_map",
    "mistral",
    "mixtral",
    "modernbert",
    "opt",
    "phi3",
    "qwen2",
    "qwen3",
    "roberta",
    "series_classifier",
    "series_forecaster",
    "smollm3",
    "t5",
    "vit",
    "whisper",
]
