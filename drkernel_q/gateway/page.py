"""The live page: files of this package, served as they are; nothing is loaded from elsewhere."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "assets"
#: Scripts, styles and answers come from the gateway alone, and nobody frames the page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
router = APIRouter(include_in_schema=False)
files = StaticFiles(directory=FOLDER)


@router.get("/")
async def page() -> FileResponse:
    """Serve the page itself; its data needs a token."""
    headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
    return FileResponse(FOLDER / "index.html", headers=headers)
