"""The studio: a page in which a model is seen and steered, and the server behind it.

``continua studio RUN`` serves the page on this machine, ``continua studio --export FOLDER`` writes it as plain files.
The page itself is TypeScript, in the folder ``page`` of the repository; what was built of it lies beside this file.
"""

from continua.studio.bundle import Bundle, Sizes, bundle_of, write_model
from continua.studio.page import page_files, write_page

__all__ = ["Bundle", "Sizes", "bundle_of", "page_files", "write_model", "write_page"]
