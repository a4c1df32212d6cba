"""Handwritten digits, read in the browser.

Draw one with the pointer: a network of 7,546 weights, trained on 1,198 images in a few seconds,
says which it is and how sure it is. It sees 8 x 8 pixels in 17 shades of grey.

    gpu export webgpu examples/digits_page.py out
    python3 -m http.server -d out
"""

from gpu import Tensor
from gpu.cli.demo_training import Training

STEPS = 300

training = Training(seed=0, steps=STEPS)
training.run(lambda report: None)
images, _ = training.testing

inputs = {"image": Tensor(images[7])}


def model(image: Tensor) -> dict[str, Tensor]:
    """The digit in an image of shape (8, 8), 0..16, and how likely it is each of ten."""
    probabilities = training.network(image.unsqueeze(0)).softmax(1).flatten()
    return {"probabilities": probabilities, "digit": probabilities.argmax()}
