"""AlexNet on images of 63 x 63 pixels, the smallest that it takes, in place of 224 x 224: a job for two cores."""

import mxnet as mx


def network():
    return mx.gluon.model_zoo.vision.alexnet(classes=10)


def prepare(images, classes):
    return mx.nd.contrib.BilinearResize2D(mx.nd.array(images / 255), height=63, width=63), classes
