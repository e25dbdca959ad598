"""Resources server of NeMo Gym that scores an answer by its vowels.

Gym starts this file as a program, in its own folder.
"""

from __future__ import annotations

from nemo_gym.base_resources_server import (
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)

from vowel_reward import vowel_share


class VowelsServer(SimpleResourcesServer):  # type: ignore[misc]  # Gym is in the image only
    """Scores answers; keeps nothing between them."""

    #: Nothing here runs on Ray: the server need not join the cluster.
    ray_enabled = False

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Return the request with its reward."""
        text = "".join(
            part.text
            for item in body.response.output
            if item.type == "message"
            for part in item.content
            if part.type == "output_text"
        )
        return BaseVerifyResponse(**body.model_dump(), reward=vowel_share(text))


if __name__ == "__main__":
    VowelsServer.run_webserver()
